"""The page in a browser: what both namespaces hold now, their messages, and the runs of a state directory."""
