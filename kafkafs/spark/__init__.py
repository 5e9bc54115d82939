"""kafkafs as a Spark source and sink, and maintenance of large logs on Spark.

Nothing here is imported by the mount or the storage.  pyspark and pyarrow come with the extra
`kafkafs[spark]`; importing this package alone imports neither.
"""
