"""Which partition a key belongs to by Kafka's rule: the plain twin of ``storage.record._route``."""

from __future__ import annotations


def murmur2(key: bytes) -> int:
    """Utils.murmur2 of Kafka's clients, in unbounded numbers: a signed number of 32 bits."""
    mask = 0xFFFFFFFF
    found = 0x9747B28C ^ len(key)
    whole = len(key) // 4 * 4
    for at in range(0, whole, 4):
        word = int.from_bytes(key[at : at + 4], "little") * 0x5BD1E995 & mask
        word = (word ^ word >> 24) * 0x5BD1E995 & mask
        found = found * 0x5BD1E995 & mask ^ word
    if whole < len(key):
        found = (found ^ int.from_bytes(key[whole:], "little")) * 0x5BD1E995 & mask
    found = (found ^ found >> 13) * 0x5BD1E995 & mask
    found ^= found >> 15
    return found - (1 << 32) if found >> 31 else found


def partition_of(key: bytes, count: int) -> int:
    """``Utils.toPositive(Utils.murmur2(key)) % count``"""
    return (murmur2(key) & 0x7FFFFFFF) % count
