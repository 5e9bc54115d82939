"""kafkafs.schemas.registry_topic: the schemas in a topic `_schemas`, as the registry finds them."""

from __future__ import annotations

import base64
import uuid

import pytest

from kafkafs.schemas.errors import SchemaError
from kafkafs.schemas.registry_topic import RegistryTopic, StoredSchema
from tests.kafkafs.schemas.registries import Topic


def updated(topic: Topic) -> RegistryTopic:
    registry = topic.opened()
    registry.update()
    return registry


def place(found: StoredSchema | None) -> tuple[str, int] | None:
    return None if found is None else (found.subject, found.version)


def test_ids_and_versions_are_found() -> None:
    topic = Topic()
    topic.register("orders-value", 1, 7, '"int"')
    topic.register("orders-value", 2, 8, '"long"', schemaType="AVRO")
    topic.append({"keytype": "NOOP", "magic": 0}, None)
    topic.append({"keytype": "CONFIG", "subject": None, "magic": 0}, {"compatibilityLevel": "FULL"})
    registry = updated(topic)
    assert place(registry.by_id(7, "orders-value")) == ("orders-value", 1)
    assert place(registry.by_id(8, "other-value")) == ("orders-value", 2)
    assert registry.by_id(9, "orders-value") is None
    assert place(registry.by_version("orders-value", None)) == ("orders-value", 2)
    assert place(registry.by_version("orders-value", 1)) == ("orders-value", 1)
    assert registry.by_version("orders-value", 3) is None
    assert registry.by_version("orders", None) is None


def test_records_that_come_later_are_read() -> None:
    topic = Topic()
    topic.register("a", 1, 1, '"int"')
    registry = updated(topic)
    assert registry.by_id(2, "a") is None
    topic.register("a", 2, 2, '"long"' + " " * 3000)
    registry.update()
    assert place(registry.by_id(2, "a")) == ("a", 2)


def test_records_that_are_no_records_of_a_registry_are_skipped() -> None:
    topic = Topic()
    topic.records += [(b"", b""), (b"{}", b"{}"), (b"\xff", None), (b'"SCHEMA"', b"7")]
    topic.append({"keytype": "SCHEMA", "subject": "a", "version": 1}, {"subject": "a"})
    topic.append({"keytype": "DELETE_SUBJECT", "subject": "a"}, [])
    nested = b"[" * 100_000 + b"]" * 100_000
    topic.records.append((b'{"keytype":"SCHEMA","subject":"a","x":%s}' % nested, None))
    topic.register("a", 1, 1, '"int"')
    assert place(updated(topic).by_id(1, "a")) == ("a", 1)


def test_a_version_that_is_marked_as_deleted_is_still_found_by_its_id() -> None:
    topic = Topic()
    topic.register("a", 1, 1, '"int"')
    topic.register("a", 2, 2, '"long"')
    topic.register("a", 2, 2, '"long"', deleted=True)
    registry = updated(topic)
    assert place(registry.by_id(2, "a")) == ("a", 2)
    assert place(registry.by_version("a", 2)) == ("a", 2)
    assert place(registry.by_version("a", None)) == ("a", 1)


def test_a_subject_is_marked_as_deleted_up_to_a_version_and_cleared() -> None:
    topic = Topic()
    for version in (1, 2, 3):
        topic.register("a", version, version, '"int"' + " " * version)
    topic.append({"keytype": "DELETE_SUBJECT", "subject": "a"}, {"subject": "a", "version": 2})
    registry = updated(topic)
    assert place(registry.by_id(1, "a")) == ("a", 1)
    assert place(registry.by_version("a", None)) == ("a", 3)
    topic.append({"keytype": "CLEAR_SUBJECT", "subject": "a"}, {"subject": "a"})
    registry.update()
    assert registry.by_id(1, "a") is None
    assert place(registry.by_id(3, "a")) == ("a", 3)


def test_a_version_that_is_deleted_for_good_is_not_found() -> None:
    topic = Topic()
    topic.register("a", 1, 1, '"int"')
    topic.register("b", 1, 1, '"int"')
    topic.register("c", 1, 2, '"long"')
    topic.delete_for_good("a", 1)
    topic.delete_for_good("c", 1)
    registry = updated(topic)
    assert place(registry.by_id(1, "a")) == ("b", 1)
    assert registry.by_id(2, "c") is None
    assert registry.by_version("c", 1) is None


def test_another_schema_with_an_id_in_use_is_ignored_as_by_the_registry() -> None:
    topic = Topic()
    topic.register("a", 1, 1, '"int"')
    topic.register("b", 1, 1, '"long"')
    registry = updated(topic)
    assert place(registry.by_id(1, "b")) == ("a", 1)
    assert registry.by_version("b", 1) is None


def test_ids_belong_to_a_context() -> None:
    topic = Topic()
    topic.register("orders-value", 1, 1, '"int"')
    topic.register(":.east:orders-value", 1, 1, '"long"')
    topic.register(":.east:orders-value", 2, 2, '"string"')
    topic.register(":.west:other-value", 1, 3, '"bytes"')
    topic.register("another-value", 1, 2, '"double"')
    registry = updated(topic)
    assert place(registry.by_id(1, "orders-value")) == ("orders-value", 1)
    assert place(registry.by_id(1, ":.:orders-value")) == ("orders-value", 1)
    assert place(registry.by_id(1, ":.east:")) == (":.east:orders-value", 1)
    # The subject of the topic in another context comes before another subject.
    assert place(registry.by_id(2, "orders-value")) == (":.east:orders-value", 2)
    assert place(registry.by_id(2, "foo-value")) == ("another-value", 1)
    assert registry.by_id(3, "orders-value") is None
    assert place(registry.by_id(3, ":.west:orders-value")) == (":.west:other-value", 1)
    assert place(registry.by_version(":.east:orders-value", None)) == (":.east:orders-value", 2)
    assert place(registry.by_version(":.:orders-value", 1)) == ("orders-value", 1)


def test_a_guid_is_a_hash_of_the_schema_and_its_references() -> None:
    topic = Topic()
    topic.register("a", 1, 1, '"int"')
    topic.register("b", 1, 2, '["A"]', [("A", "a", 1)])
    given = uuid.uuid4().bytes
    topic.register("c", 1, 3, '"long"', md5=base64.b64encode(given).decode())
    topic.register("d", 1, 4, '"int"', metadata={"owner": "x"})
    topic.register("e", 1, 5, '"bytes"', md5="é")
    registry = updated(topic)
    # md5sum of the text, and of the text, "A", "a" and 00000001.
    assert place(registry.by_guid(bytes.fromhex("ef524ea1b91e73173d938ade36c1db32"))) == ("a", 1)
    assert place(registry.by_guid(bytes.fromhex("81abd9e2e33e4dbd4873aba19aa35d16"))) == ("b", 1)
    assert place(registry.by_guid(given)) == ("c", 1)
    assert registry.by_guid(bytes(16)) is None


# -- references ------------------------------------------------------------------------------------


def references_of(topic: Topic, subject: str, version: int = 1) -> list[str]:
    registry = updated(topic)
    schema = registry.by_version(subject, version)
    assert schema is not None
    return registry.references_of(schema)


def test_references_come_before_the_schemas_that_use_them() -> None:
    topic = Topic()
    topic.register("a", 1, 1, "A")
    topic.register("b", 1, 2, "B", [("A", "a", 1)])
    topic.register("c", 1, 3, "C", [("B", "b", 1), ("A", "a", 1)])
    topic.register("d", 1, 4, "D", [("C", "c", 1)], deleted=True)
    topic.register("e", 1, 5, "E", [("A", "a", 1), ("D", "d", 1)])
    assert references_of(topic, "a") == []
    assert references_of(topic, "d") == ["A", "B", "C"]
    assert references_of(topic, "e") == ["A", "B", "C", "D"]


def test_references_stay_in_the_context() -> None:
    topic = Topic()
    topic.register("a", 1, 1, "default A")
    topic.register(":.east:a", 1, 1, "east A")
    topic.register(":.east:b", 1, 2, "B", [("A", "a", 1)])
    topic.register(":.east:c", 1, 3, "C", [("A", ":.:a", 1)])
    assert references_of(topic, ":.east:b") == ["east A"]
    assert references_of(topic, ":.east:c") == ["default A"]


def test_of_two_versions_with_one_name_the_first_counts_as_in_the_registry() -> None:
    topic = Topic()
    topic.register("a", 1, 1, "A1")
    topic.register("a", 2, 2, "A2")
    topic.register("b", 1, 3, "B", [("A", "a", 2)])
    topic.register("c", 1, 4, "C", [("B", "b", 1), ("A", "a", 1)])
    assert references_of(topic, "c") == ["A2", "B"]


def test_a_cycle_of_references_is_an_error() -> None:
    topic = Topic()
    topic.register("a", 1, 1, "A", [("B", "b", 1)])
    topic.register("b", 1, 2, "B", [("A", "a", 1)])
    message = "the references of the schema form a cycle at version 1 of the subject a"
    with pytest.raises(SchemaError, match=message):
        references_of(topic, "a")


def test_a_missing_reference_is_an_error() -> None:
    topic = Topic()
    topic.register("a", 1, 1, "A", [("B", "b", 3)])
    message = "the schema refers to version 3 of the subject b, which is missing"
    with pytest.raises(SchemaError, match=message):
        references_of(topic, "a")


def test_references_have_at_most_1000_levels() -> None:
    topic = Topic()
    topic.register("s0", 1, 1, "0")
    for n in range(1, 1002):
        topic.register(f"s{n}", 1, n + 1, str(n), [(f"S{n - 1}", f"s{n - 1}", 1)])
    assert len(references_of(topic, "s1000")) == 1000
    with pytest.raises(SchemaError, match="references of more than 1,000 levels"):
        references_of(topic, "s1001")
