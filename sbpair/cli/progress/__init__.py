"""Progress on stderr: live tables on a terminal, lines or JSON elsewhere."""
