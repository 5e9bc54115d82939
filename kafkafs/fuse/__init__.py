"""The FUSE side: the daemon, its session loop, and the adapter between pyfuse3 and the tree."""
