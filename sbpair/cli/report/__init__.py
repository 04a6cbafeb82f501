"""The report of one run: facts from its record, plots, and pages in HTML and Markdown."""
