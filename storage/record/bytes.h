/* Loads and stores numbers of 32 and 64 bits at any address; big-endian unless the name says so. */

#pragma once

#include <endian.h>
#include <stdint.h>
#include <string.h>

static inline uint32_t kafkafs_load32(const uint8_t *at)
{ uint32_t bits; memcpy(&bits, at, 4); return be32toh(bits); }

static inline uint64_t kafkafs_load64(const uint8_t *at)
{ uint64_t bits; memcpy(&bits, at, 8); return be64toh(bits); }

static inline uint32_t kafkafs_load32_little(const uint8_t *at)
{ uint32_t bits; memcpy(&bits, at, 4); return le32toh(bits); }

static inline uint64_t kafkafs_load64_little(const uint8_t *at)
{ uint64_t bits; memcpy(&bits, at, 8); return le64toh(bits); }

static inline void kafkafs_store32(uint8_t *at, uint32_t bits)
{ bits = htobe32(bits); memcpy(at, &bits, 4); }

static inline void kafkafs_store64(uint8_t *at, uint64_t bits)
{ bits = htobe64(bits); memcpy(at, &bits, 8); }

/* Loads in the byte order of the machine. */

static inline int32_t kafkafs_native32(const uint8_t *at)
{ int32_t bits; memcpy(&bits, at, 4); return bits; }

static inline int64_t kafkafs_native64(const uint8_t *at)
{ int64_t bits; memcpy(&bits, at, 8); return bits; }
