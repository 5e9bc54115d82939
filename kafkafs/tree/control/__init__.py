"""Files that take lines and act on them: `.config` (`topic_config`), and those of `.control`.

`control_file` collects lines and carries them out. Each command of `.control` has a module; most
begin jobs (`kafkafs.tree.jobs`): `job_file` has what these share, `commands` parses their words.
`directories.control_directory` is the directory.
"""
