"""What commands share; no command is here, and nothing here imports one.

What a command is given: `addresses` names logs, `mounted_paths` files of a mount, `views` a view.
`matching` leaves out records that the option `--where` does not want. `mount_files` reads files of
a mount, also where there is none. `decoding` decodes records for the option `--decode`.

What it asks a daemon: `serving` says whether one answers, before a mount is touched; `daemon_jobs`
has it do work, `refusals` says why it has refused something, `patience` waits while it measures.

What it tells people: `output` prints facts, as text or JSON, `progress` shows how far work is,
`ending` says why it ends, `as_user` gives the line that another user has to type.

`changes` is of those that make, delete and fill topics: in the directory, or through its mount.
"""
