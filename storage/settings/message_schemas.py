"""The messages in Kafka's own topics and in control records.

A message: its name, its versions, `flexible=` the first version that is flexible (KIP-482), then
its fields. A field: name, type (`*` an array of it, `[…]` an array of structs, `{…}` a struct), its
versions if not all, `null` if it may be null (`tag=` if it is tagged), `default=` if that is not
the type's zero or empty.

From the message definitions of Apache Kafka 4.4.0
(`group-coordinator/src/main/resources/common/message` and its like), whose order of fields is that
of the bytes and of the JSON.
"""

from __future__ import annotations

from typing import Final

#: Control records of KRaft, and what classic groups' members hand to each other.
PROTOCOL: Final = """
ConsumerProtocolAssignment 0-3: assignedPartitions [topic string, partitions int32*], userData
  bytes null default=null
ConsumerProtocolSubscription 0-3: topics string*, userData bytes null default=null,
  ownedPartitions [topic string 1+, partitions int32* 1+] 1+, generationId int32 2+ default=-1,
  rackId string 3+ null default=null
KRaftVersionRecord 0-0 flexible=0: version int16, kRaftVersion int16
LeaderChangeMessage 0-1 flexible=0: version int16, leaderId int32, voters [voterId int32,
  voterDirectoryId uuid 1+], grantingVoters [voterId int32, voterDirectoryId uuid 1+]
SnapshotFooterRecord 0-0 flexible=0: version int16
SnapshotHeaderRecord 0-0 flexible=0: version int16, lastContainedLogTimestamp int64
VotersRecord 0-0 flexible=0: version int16, voters [voterId int32, voterDirectoryId uuid,
  endpoints [name string, host string, port uint16], kRaftVersionFeature {minSupportedVersion
  int16, maxSupportedVersion int16}]
"""

#: Of `__consumer_offsets`, by the type that a key begins with.
OFFSETS: Final = """
LegacyOffsetCommitKey 0-0 id=0: group string, topic string, partition int32
LegacyOffsetCommitValue 0-0 id=0: offset int64, metadata string, commitTimestamp int64
OffsetCommitKey 0-0 id=1: group string, topic string, partition int32
OffsetCommitValue 0-4 flexible=4 id=1: offset int64, leaderEpoch int32 3+ default=-1, metadata
  string, commitTimestamp int64, expireTimestamp int64 1-1 default=-1, topicId uuid 4+ tag=0
GroupMetadataKey 0-0 id=2: group string
GroupMetadataValue 0-4 flexible=4 id=2: protocolType string, generation int32, protocol string
  null, leader string null, currentStateTimestamp int64 2+ default=-1, members [memberId string,
  groupInstanceId string 3+ null default=null, clientId string, clientHost string,
  rebalanceTimeout int32 1+ default=-1, sessionTimeout int32, subscription bytes, assignment
  bytes]
ConsumerGroupMetadataKey 0-0 id=3: groupId string
ConsumerGroupMetadataValue 0-0 flexible=0 id=3: epoch int32, metadataHash int64 tag=0
ConsumerGroupPartitionMetadataKey 0-0 id=4: groupId string
ConsumerGroupPartitionMetadataValue 0-0 flexible=0 id=4: topics [topicId uuid, topicName string,
  numPartitions int32, partitionMetadata [partition int32, racks string*]]
ConsumerGroupMemberMetadataKey 0-0 id=5: groupId string, memberId string
ConsumerGroupMemberMetadataValue 0-0 flexible=0 id=5: instanceId string null, rackId string null,
  clientId string, clientHost string, subscribedTopicNames string*, subscribedTopicRegex string
  null, rebalanceTimeoutMs int32 default=-1, serverAssignor string null, classicMemberMetadata
  {sessionTimeoutMs int32, supportedProtocols [name string, metadata bytes]} null tag=0
ConsumerGroupTargetAssignmentMetadataKey 0-0 id=6: groupId string
ConsumerGroupTargetAssignmentMetadataValue 0-0 flexible=0 id=6: assignmentEpoch int32,
  assignmentTimestamp int64 tag=0
ConsumerGroupTargetAssignmentMemberKey 0-0 id=7: groupId string, memberId string
ConsumerGroupTargetAssignmentMemberValue 0-0 flexible=0 id=7: topicPartitions [topicId uuid,
  partitions int32*]
ConsumerGroupCurrentMemberAssignmentKey 0-0 id=8: groupId string, memberId string
ConsumerGroupCurrentMemberAssignmentValue 0-0 flexible=0 id=8: memberEpoch int32,
  previousMemberEpoch int32, state int8, assignedPartitions [topicId uuid, partitions int32*,
  assignmentEpochs int32* null tag=0], partitionsPendingRevocation [topicId uuid, partitions
  int32*, assignmentEpochs int32* null tag=0]
ShareGroupMemberMetadataKey 0-0 id=10: groupId string, memberId string
ShareGroupMemberMetadataValue 0-0 flexible=0 id=10: rackId string null, clientId string,
  clientHost string, subscribedTopicNames string*
ShareGroupMetadataKey 0-0 id=11: groupId string
ShareGroupMetadataValue 0-0 flexible=0 id=11: epoch int32, metadataHash int64
ShareGroupTargetAssignmentMetadataKey 0-0 id=12: groupId string
ShareGroupTargetAssignmentMetadataValue 0-0 flexible=0 id=12: assignmentEpoch int32,
  assignmentTimestamp int64 tag=0
ShareGroupTargetAssignmentMemberKey 0-0 id=13: groupId string, memberId string
ShareGroupTargetAssignmentMemberValue 0-0 flexible=0 id=13: topicPartitions [topicId uuid,
  partitions int32*]
ShareGroupCurrentMemberAssignmentKey 0-0 id=14: groupId string, memberId string
ShareGroupCurrentMemberAssignmentValue 0-0 flexible=0 id=14: memberEpoch int32,
  previousMemberEpoch int32, state int8, assignedPartitions [topicId uuid, partitions int32*]
ShareGroupStatePartitionMetadataKey 0-0 id=15: groupId string
ShareGroupStatePartitionMetadataValue 0-0 flexible=0 id=15: initializingTopics [topicId uuid,
  topicName string, partitions int32*], initializedTopics [topicId uuid, topicName string,
  partitions int32*], deletingTopics [topicId uuid, topicName string]
ConsumerGroupRegularExpressionKey 0-0 id=16: groupId string, regularExpression string
ConsumerGroupRegularExpressionValue 0-0 flexible=0 id=16: topics string*, version int64, timestamp
  int64
StreamsGroupMetadataKey 0-0 id=17: groupId string
StreamsGroupMetadataValue 0-0 flexible=0 id=17: epoch int32, metadataHash int64,
  validatedTopologyEpoch int32 tag=0 default=-1, lastAssignmentConfigs [key string, value string]
  null tag=1, storedDescriptionTopologyEpoch int32 tag=2 default=-1, failedDescriptionTopologyEpoch
  int32 tag=3 default=-1
StreamsGroupMemberMetadataKey 0-0 id=19: groupId string, memberId string
StreamsGroupMemberMetadataValue 0-0 flexible=0 id=19: instanceId string null, rackId string null,
  clientId string, clientHost string, rebalanceTimeoutMs int32 default=-1, topologyEpoch int32,
  processId string, userEndpoint {host string, port uint16} null default=null, clientTags [key
  string, value string]
StreamsGroupTargetAssignmentMetadataKey 0-0 id=20: groupId string
StreamsGroupTargetAssignmentMetadataValue 0-0 flexible=0 id=20: assignmentEpoch int32,
  assignmentTimestamp int64 tag=0
StreamsGroupTargetAssignmentMemberKey 0-0 id=21: groupId string, memberId string
StreamsGroupTargetAssignmentMemberValue 0-0 flexible=0 id=21: activeTasks [subtopologyId string,
  partitions int32*], standbyTasks [subtopologyId string, partitions int32*], warmupTasks
  [subtopologyId string, partitions int32*]
StreamsGroupCurrentMemberAssignmentKey 0-0 id=22: groupId string, memberId string
StreamsGroupCurrentMemberAssignmentValue 0-0 flexible=0 id=22: memberEpoch int32,
  previousMemberEpoch int32, state int8, activeTasks [subtopologyId string, partitions int32*,
  assignmentEpochs int32* null tag=0], standbyTasks [subtopologyId string, partitions int32*,
  assignmentEpochs int32* null tag=0], warmupTasks [subtopologyId string, partitions int32*,
  assignmentEpochs int32* null tag=0], activeTasksPendingRevocation [subtopologyId string,
  partitions int32*, assignmentEpochs int32* null tag=0], standbyTasksPendingRevocation
  [subtopologyId string, partitions int32*, assignmentEpochs int32* null tag=0],
  warmupTasksPendingRevocation [subtopologyId string, partitions int32*, assignmentEpochs int32*
  null tag=0]
StreamsGroupTopologyKey 0-0 id=23: groupId string
StreamsGroupTopologyValue 0-0 flexible=0 id=23: epoch int32, subtopologies [subtopologyId string,
  sourceTopics string*, sourceTopicRegex string*, stateChangelogTopics [name string, partitions
  int32, replicationFactor int16, topicConfigs [key string, value string]], repartitionSinkTopics
  string*, repartitionSourceTopics [name string, partitions int32, replicationFactor int16,
  topicConfigs [key string, value string]], copartitionGroups [sourceTopics int16*,
  sourceTopicRegex int16*, repartitionSourceTopics int16*]]
"""

#: Of `__transaction_state`.
TRANSACTIONS: Final = """
TransactionLogKey 0-0 id=0: transactionalId string
TransactionLogValue 0-1 flexible=1 id=0: producerId int64, previousProducerId int64 1+ tag=0
  default=-1, nextProducerId int64 1+ tag=1 default=-1, producerEpoch int16, nextProducerEpoch
  int16 1+ tag=3 default=-1, transactionTimeoutMs int32, transactionStatus int8,
  transactionPartitions [topic string, partitionIds int32*] null, transactionLastUpdateTimestampMs
  int64, transactionStartTimestampMs int64, clientTransactionVersion int16 1+ tag=2
"""

#: Of `__share_group_state`.
SHARES: Final = """
ShareSnapshotKey 0-0 id=0: groupId string, topicId uuid, partition int32
ShareSnapshotValue 0-0 flexible=0 id=0: snapshotEpoch int32, stateEpoch int32, leaderEpoch int32,
  startOffset int64, deliveryCompleteCount int32 tag=0 default=-1, createTimestamp int64,
  writeTimestamp int64, stateBatches [firstOffset int64, lastOffset int64, deliveryState int8,
  deliveryCount int16]
ShareUpdateKey 0-0 id=1: groupId string, topicId uuid, partition int32
ShareUpdateValue 0-0 flexible=0 id=1: snapshotEpoch int32, leaderEpoch int32, startOffset int64,
  deliveryCompleteCount int32 tag=0 default=-1, stateBatches [firstOffset int64, lastOffset int64,
  deliveryState int8, deliveryCount int16]
"""

#: Of `__cluster_metadata`.
METADATA: Final = """
RegisterBrokerRecord 0-4 flexible=0 id=0: brokerId int32, isMigratingZkBroker bool 2+
  default=false, incarnationId uuid, brokerEpoch int64, endPoints [name string, host string, port
  uint16, securityProtocol int16], features [name string, minSupportedVersion int16,
  maxSupportedVersion int16], rack string null, fenced bool default=true, inControlledShutdown
  bool 1+ default=false, logDirs uuid* 3+ tag=0, cordonedLogDirs uuid* 4+ null tag=1 default=null
UnregisterBrokerRecord 0-0 flexible=0 id=1: brokerId int32, brokerEpoch int64
TopicRecord 0-0 flexible=0 id=2: name string, topicId uuid
PartitionRecord 0-2 flexible=0 id=3: partitionId int32 default=-1, topicId uuid, replicas int32*,
  isr int32*, removingReplicas int32*, addingReplicas int32*, leader int32 default=-1,
  leaderRecoveryState int8 tag=0, leaderEpoch int32 default=-1, partitionEpoch int32 default=-1,
  directories uuid* 1+, eligibleLeaderReplicas int32* 2+ null tag=1 default=null, lastKnownElr
  int32* 2+ null tag=2 default=null
ConfigRecord 0-0 flexible=0 id=4: resourceType int8, resourceName string, name string, value
  string null
PartitionChangeRecord 0-2 flexible=0 id=5: partitionId int32 default=-1, topicId uuid, isr int32*
  null tag=0 default=null, leader int32 tag=1 default=-2, replicas int32* null tag=2 default=null,
  removingReplicas int32* null tag=3 default=null, addingReplicas int32* null tag=4 default=null,
  leaderRecoveryState int8 tag=5 default=-1, directories uuid* 1+ null tag=8 default=null,
  eligibleLeaderReplicas int32* 2+ null tag=6 default=null, lastKnownElr int32* 2+ null tag=7
  default=null
FenceBrokerRecord 0-0 flexible=0 id=7: id int32, epoch int64
UnfenceBrokerRecord 0-0 flexible=0 id=8: id int32, epoch int64
RemoveTopicRecord 0-0 flexible=0 id=9: topicId uuid
DelegationTokenRecord 0-0 flexible=0 id=10: owner string, requester string, renewers string*,
  issueTimestamp int64, maxTimestamp int64, expirationTimestamp int64, tokenId string
UserScramCredentialRecord 0-0 flexible=0 id=11: name string, mechanism int8, salt bytes, storedKey
  bytes, serverKey bytes, iterations int32
FeatureLevelRecord 0-0 flexible=0 id=12: name string, featureLevel int16
ClientQuotaRecord 0-0 flexible=0 id=14: entity [entityType string, entityName string null], key
  string, value float64, remove bool
ProducerIdsRecord 0-0 flexible=0 id=15: brokerId int32, brokerEpoch int64 default=-1,
  nextProducerId int64
BrokerRegistrationChangeRecord 0-3 flexible=0 id=17: brokerId int32, brokerEpoch int64, fenced
  int8 tag=0, inControlledShutdown int8 1+ tag=1, logDirs uuid* 2+ tag=2, cordonedLogDirs uuid* 3+
  null tag=3 default=null
AccessControlEntryRecord 0-0 flexible=0 id=18: id uuid, resourceType int8, resourceName string,
  patternType int8, principal string, host string, operation int8, permissionType int8
RemoveAccessControlEntryRecord 0-0 flexible=0 id=19: id uuid
NoOpRecord 0-0 flexible=0 id=20:
ZkMigrationStateRecord 0-0 flexible=0 id=21: zkMigrationState int8
RemoveUserScramCredentialRecord 0-0 flexible=0 id=22: name string, mechanism int8
BeginTransactionRecord 0-0 flexible=0 id=23: name string null tag=0 default=null
EndTransactionRecord 0-0 flexible=0 id=24:
AbortTransactionRecord 0-0 flexible=0 id=25: reason string null tag=0 default=null
RemoveDelegationTokenRecord 0-0 flexible=0 id=26: tokenId string
RegisterControllerRecord 0-0 flexible=0 id=27: controllerId int32, incarnationId uuid,
  zkMigrationReady bool, endPoints [name string, host string, port uint16, securityProtocol
  int16], features [name string, minSupportedVersion int16, maxSupportedVersion int16]
ClearElrRecord 0-0 flexible=0 id=28: topicName string
UnregisterControllerRecord 0-0 flexible=0 id=29: controllerId int32
"""
