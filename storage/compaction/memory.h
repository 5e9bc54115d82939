/* Allocates and frees the memory of offset maps with mmap(2), and returns parts with madvise(2). */

#pragma once

#include <stdint.h>
#include <sys/mman.h>

/* Returns zeroed memory, or NULL. Loops read a large table at random, and huge pages need fewer
   entries in the processor's TLB. */
static void *kafkafs_new_memory(uint64_t size)
{
    void *made = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (made == MAP_FAILED)
        return NULL;
#ifdef MADV_HUGEPAGE
    (void) madvise(made, size, MADV_HUGEPAGE);
#endif
    return made;
}

static void kafkafs_end_memory(void *memory, uint64_t size) { (void) munmap(memory, size); }

static void kafkafs_give_back(void *memory, uint64_t size)
{ (void) madvise(memory, size, MADV_DONTNEED); }
