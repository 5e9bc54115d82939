"""The lines that files take: those of `.control`, `.config` (`topic_config`), `.kafkafs/topics`.

`files.control_file` collects lines. Each command of `.control` has a module; most begin jobs
(`kafkafs.tree.jobs`): `job_file` has what these share, `commands` parses their words.
"""
