"""ChestX-ray14: fourteen findings in chest X-rays."""
