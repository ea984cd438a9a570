"""One file a command, of `ckpt` one for a few actions each; reading commands import neither torch nor lightning."""
