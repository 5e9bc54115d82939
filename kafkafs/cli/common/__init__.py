"""Code that commands share. No command is here, and nothing here imports one.

Arguments: `addresses` resolves logs, and `views` resolves a view. `matching` selects records by the
option `--where`. `mount_files` reads the files of a mount, and also works without a mount.
`decoding` decodes records for the option `--decode`.

Daemons: `serving` checks that a daemon answers, before a command touches its mount. `daemon_jobs`
runs jobs in the daemon. `refusals` finds out why the daemon has refused a request.

Output: `output` prints facts as text or JSON. `progress` shows the progress of work. `ending`
prints why a command ends.

`changes` is for commands that create, delete and fill topics, in the directory or through its
mount.
"""
