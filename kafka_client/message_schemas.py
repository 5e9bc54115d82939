"""The requests that the client sends and their answers, in the dialect of
`storage.settings.message_schemas`, whose docstring describes it. `id=` is the API key. A field of a
struct says its versions if the struct has more.

From the message definitions of Apache Kafka 4.4.0
(`clients/src/main/resources/common/message`). Records are `bytes` here.
"""

from __future__ import annotations

from typing import Final

REQUESTS: Final = """
ApiVersionsRequest 0-5 flexible=3 id=18: clientSoftwareName string 3+, clientSoftwareVersion string
  3+, clusterId string 5+ null default=null, nodeId int32 5+ default=-1
ApiVersionsResponse 0-5 flexible=3 id=18: errorCode int16, apiKeys [apiKey int16, minVersion int16,
  maxVersion int16], throttleTimeMs int32 1+, supportedFeatures [name string, minVersion int16,
  maxVersion int16] 3+ tag=0, finalizedFeaturesEpoch int64 3+ tag=1 default=-1, finalizedFeatures
  [name string, maxVersionLevel int16, minVersionLevel int16] 3+ tag=2, zkMigrationReady bool 3+
  tag=3
SaslHandshakeRequest 0-1 id=17: mechanism string
SaslHandshakeResponse 0-1 id=17: errorCode int16, mechanisms string*
SaslAuthenticateRequest 0-2 flexible=2 id=36: authBytes bytes
SaslAuthenticateResponse 0-2 flexible=2 id=36: errorCode int16, errorMessage string null, authBytes
  bytes, sessionLifetimeMs int64 1+
MetadataRequest 0-13 flexible=9 id=3: topics [topicId uuid 10+, name string null] null,
  allowAutoTopicCreation bool 4+ default=true, includeClusterAuthorizedOperations bool 8-10,
  includeTopicAuthorizedOperations bool 8+
MetadataResponse 0-13 flexible=9 id=3: throttleTimeMs int32 3+, brokers [nodeId int32, host string,
  port int32, rack string 1+ null default=null], clusterId string 2+ null default=null, controllerId
  int32 1+ default=-1, topics [errorCode int16, name string null, topicId uuid 10+, isInternal bool
  1+, partitions [errorCode int16, partitionIndex int32, leaderId int32, leaderEpoch int32 7+
  default=-1, replicaNodes int32*, isrNodes int32*, offlineReplicas int32* 5+],
  topicAuthorizedOperations int32 8+ default=-2147483648], clusterAuthorizedOperations int32 8-10
  default=-2147483648, errorCode int16 13+
FetchRequest 4-18 flexible=12 id=1: clusterId string 12+ null tag=0 default=null, replicaId int32
  4-14 default=-1, replicaState {replicaId int32 default=-1, replicaEpoch int64 default=-1} 15+
  tag=1, maxWaitMs int32, minBytes int32, maxBytes int32 default=2147483647, isolationLevel int8,
  sessionId int32 7+, sessionEpoch int32 7+ default=-1, topics [topic string 4-12, topicId uuid 13+,
  partitions [partition int32, currentLeaderEpoch int32 9+ default=-1, fetchOffset int64,
  lastFetchedEpoch int32 12+ default=-1, logStartOffset int64 5+ default=-1, partitionMaxBytes
  int32, replicaDirectoryId uuid 17+ tag=0, highWatermark int64 18+ tag=1
  default=9223372036854775807]], forgottenTopicsData [topic string 7-12, topicId uuid 13+,
  partitions int32*] 7+, rackId string 11+
FetchResponse 4-18 flexible=12 id=1: throttleTimeMs int32, errorCode int16 7+, sessionId int32 7+,
  responses [topic string 4-12, topicId uuid 13+, partitions [partitionIndex int32, errorCode int16,
  highWatermark int64, lastStableOffset int64 default=-1, logStartOffset int64 5+ default=-1,
  divergingEpoch {epoch int32 default=-1, endOffset int64 default=-1} 12+ tag=0, currentLeader
  {leaderId int32 default=-1, leaderEpoch int32 default=-1} 12+ tag=1, snapshotId {endOffset int64
  default=-1, epoch int32 default=-1} 12+ tag=2, abortedTransactions [producerId int64, firstOffset
  int64] null, preferredReadReplica int32 11+ default=-1, records bytes null]], nodeEndpoints
  [nodeId int32, host string, port int32, rack string null default=null] 16+ tag=0
ListOffsetsRequest 1-11 flexible=6 id=2: replicaId int32, isolationLevel int8 2+, topics [name
  string, partitions [partitionIndex int32, currentLeaderEpoch int32 4+ default=-1, timestamp
  int64]], timeoutMs int32 10+
ListOffsetsResponse 1-11 flexible=6 id=2: throttleTimeMs int32 2+, topics [name string, partitions
  [partitionIndex int32, errorCode int16, timestamp int64 default=-1, offset int64 default=-1,
  leaderEpoch int32 4+ default=-1]]
OffsetForLeaderEpochRequest 2-4 flexible=4 id=23: replicaId int32 3+ default=-2, topics [topic
  string, partitions [partition int32, currentLeaderEpoch int32 default=-1, leaderEpoch int32]]
OffsetForLeaderEpochResponse 2-4 flexible=4 id=23: throttleTimeMs int32, topics [topic string,
  partitions [errorCode int16, partition int32, leaderEpoch int32 default=-1, endOffset int64
  default=-1]]
ProduceRequest 3-13 flexible=9 id=0: transactionalId string null default=null, acks int16, timeoutMs
  int32, topicData [name string 3-12, topicId uuid 13+, partitionData [index int32, records bytes
  null]]
ProduceResponse 3-13 flexible=9 id=0: responses [name string 3-12, topicId uuid 13+,
  partitionResponses [index int32, errorCode int16, baseOffset int64, logAppendTimeMs int64
  default=-1, logStartOffset int64 5+ default=-1, recordErrors [batchIndex int32,
  batchIndexErrorMessage string null default=null] 8+, errorMessage string 8+ null default=null,
  currentLeader {leaderId int32 default=-1, leaderEpoch int32 default=-1} 10+ tag=0]],
  throttleTimeMs int32, nodeEndpoints [nodeId int32, host string, port int32, rack string null
  default=null] 10+ tag=0
FindCoordinatorRequest 0-6 flexible=3 id=10: key string 0-3, keyType int8 1+, coordinatorKeys
  string* 4+
FindCoordinatorResponse 0-6 flexible=3 id=10: throttleTimeMs int32 1+, errorCode int16 0-3,
  errorMessage string 1-3 null, nodeId int32 0-3, host string 0-3, port int32 0-3, coordinators [key
  string, nodeId int32, host string, port int32, errorCode int16, errorMessage string null] 4+
OffsetFetchRequest 1-10 flexible=6 id=9: groupId string 1-7, topics [name string, partitionIndexes
  int32*] 1-7 null, groups [groupId string, memberId string 9+ null default=null, memberEpoch int32
  9+ default=-1, topics [name string 8-9, topicId uuid 10+, partitionIndexes int32*] null] 8+,
  requireStable bool 7+
OffsetFetchResponse 1-10 flexible=6 id=9: throttleTimeMs int32 3+, topics [name string, partitions
  [partitionIndex int32, committedOffset int64, committedLeaderEpoch int32 5+ default=-1, metadata
  string null, errorCode int16]] 1-7, errorCode int16 2-7, groups [groupId string, topics [name
  string 8-9, topicId uuid 10+, partitions [partitionIndex int32, committedOffset int64,
  committedLeaderEpoch int32 default=-1, metadata string null, errorCode int16]], errorCode int16]
  8+
DescribeConfigsRequest 1-4 flexible=4 id=32: resources [resourceType int8, resourceName string,
  configurationKeys string* null], includeSynonyms bool, includeDocumentation bool 3+
DescribeConfigsResponse 1-4 flexible=4 id=32: throttleTimeMs int32, results [errorCode int16,
  errorMessage string null, resourceType int8, resourceName string, configs [name string, value
  string null, readOnly bool, configSource int8 default=-1, isSensitive bool, synonyms [name string,
  value string null, source int8], configType int8 3+, documentation string 3+ null]]
ListGroupsRequest 0-5 flexible=3 id=16: statesFilter string* 4+, typesFilter string* 5+
ListGroupsResponse 0-5 flexible=3 id=16: throttleTimeMs int32 1+, errorCode int16, groups [groupId
  string, protocolType string, groupState string 4+, groupType string 5+]
"""
