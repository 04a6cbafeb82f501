"""The commands: options in, one library call, results out."""
