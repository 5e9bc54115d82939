"""kafkafs as a Spark source and sink, and maintenance of large logs on Spark.

Neither the mount nor the storage imports it. pyspark and pyarrow come with the extra
`spark`; importing this package alone imports neither.
"""
