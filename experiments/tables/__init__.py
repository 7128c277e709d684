"""Tables: :mod:`.table` has data, :mod:`.render` shows them, :mod:`.escaping` their text."""
