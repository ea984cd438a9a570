"""One file a command; reading commands import neither torch nor lightning."""
