"""The page with all figures, made of the numbers; nothing else of this package knows of it."""
