"""From a partition's directory, after any stop, to segments and producers that can be trusted.

`recovery` goes through Kafka's numbered passes: `swap` ends what a cleaner left half done,
`loading` loads each segment and makes its indexes anew where need be, `misplaced` finds wrong base
offsets, `replay` rebuilds the producers' state.

What was appended and acknowledged before a clean stop, or flushed before any, is never cut.
"""
