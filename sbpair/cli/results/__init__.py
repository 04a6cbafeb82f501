"""The results of commands: the JSON document of each, its JSON Lines and its schema follow from a class."""
