/* Whether this thread is inside storage.waiting.at_once. */
static __thread int must_not_wait = 0;
