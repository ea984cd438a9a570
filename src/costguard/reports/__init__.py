"""What the user reads: receipt as text, JSON and page."""
