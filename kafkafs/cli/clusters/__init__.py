"""Commands on a cluster, `kafka://HOST:PORT/TOPIC`, instead of on a data directory.

`common.clusters` reads the command line and connects. `facts` has what `ls`, `describe` and
`groups` print. `windows` copies records into small data directories, whose records `cat` prints as
those of any other. `ranges` finds the offsets of `@START..END`. `produce` appends.
"""
