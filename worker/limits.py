"""Every bound of the worker that no other package needs. Knows nothing of who enforces it."""

INBOX_ITEMS = 4096  # commands the loop has not read; the link stops listening beyond
OUTBOX_ITEMS = 16_384  # messages the link has not sent; the loop waits beyond
DONE_LOGS = 1024  # ended runs nobody acknowledged; the oldest goes beyond
GGUF_KEYS = 65_536  # metadata entries of one file; real ones have a few dozen
MESSAGE_SLACK_BYTES = 1024 * 1024  # a message a little over the limit is answered, not cut off
RECEIVED_AT_ONCE = 256  # messages between two looks at the clocks
MOST_TOKEN_NUMBER = 2**62  # of a run's first token: its last one must fit into 64 bits
STORE_WORDS = 48_000_000  # of one suffix store: 192 MB on disk and as much for its order
STORES_OPEN = 16  # suffix stores, one a tenant; the one not used for longest is closed beyond
STORE_JOBS = 256  # documents that suffix stores have not written; more are dropped
DISK_HITS = 16_384  # chunks of which it is counted how often they were resumed from
DISK_DUE = 64  # prompts that wait to be written to disk; the oldest is forgotten beyond
DISK_WRITES = 4  # chunks in memory that are not on disk yet; no more are copied beyond
CUTS_SEEN = 256  # system prompts that one conversation began with; the oldest is forgotten beyond
CORPUS_BYTES = 32 * 1024 * 1024  # of text, encoded at each start: about half a minute
CORPUS_FILES = 10_000
SYSTEM_TEXTS = 16  # system turns whose ids are remembered; real ones have up to some 10,000 tokens
REASONED_REPLIES = 4096  # replies known to have had reasoning, as hashes
WARM_PENDING = 16  # conversations whose next prompt waits to be read ahead; the oldest goes beyond
WARM_READ = 256  # conversations whose next prompt was read ahead and has not come
HELD_TOKENS = 4096  # of calls that wait to be checked; beyond, they go out as they are
RECLAIMED_AT_ONCE = 10_000  # kept states that may go for one request
