"""What the device can do and is doing."""
