"""The command line: options in, one call, output. The only importer of typer and rich."""
