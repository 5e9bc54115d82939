"""Commands on a cluster, `kafka://HOST:PORT/TOPIC`, instead of on a data directory.

`common.clusters` reads the command line and connects. `facts` has what `ls`, `describe` and
`groups` print. `pieces` reads batches, and `text` shows their records as the files of a mount do.
`ranges` finds the offsets of `@START..END`. `produce` appends.
"""
