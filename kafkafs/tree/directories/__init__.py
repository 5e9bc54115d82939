"""Directories, and the texts and rules of what is in them; `kafkafs.tree.names` lists their names.

`directory` has the one class of directories. `topics` has the places of topics, and how their names
are found, made and removed; `group_directories` has `.groups`. `about` has the texts of `.kafkafs`.
"""
