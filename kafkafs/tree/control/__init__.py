"""Files that take lines and act on them: `.config` (`topic_config`), and those of `.control`.

`control_file` collects lines and has them carried out. In `.control` there is a module for each
command; most begin jobs (`kafkafs.tree.jobs`): `job_file` has what those share, `commands` the
words that they take. The directory itself is `directories.control_directory`.
"""
