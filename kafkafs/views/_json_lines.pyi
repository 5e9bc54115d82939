from kafkafs.views._measure import Loops

LOOPS: Loops
