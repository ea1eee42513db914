"""Every ceiling that more than one package must agree on. Knows nothing of who enforces it.

Each number has a unit and a reason; what an operator may change is a setting instead.
"""

# HTTP, as read from a peer (reliability: size limits).
REQUEST_LINE_BYTES = 8 * 1024  # longer targets are attacks or mistakes: 414
HEADER_BLOCK_BYTES = 64 * 1024  # agents send about 3 KiB: 431 beyond
HEADER_COUNT = 128  # fields in one header block: 431 beyond
PIPELINED_REQUESTS = 8  # of one client, sent ahead while another one of its requests runs
PIPELINED_BYTES = 64 * 1024  # of the body of each of these
UNREAD_BODY_BYTES = 1024**2  # of a body nobody has asked for; a read is 256 KiB at most
BODY_PIECES = 1_000  # kept one by one; 2 bytes in a chunk of their own would cost 28 times as much
DECOMPRESSION_RATIO = 100  # a body that unpacks to more is a bomb: 413

# The content of a model call.
JSON_DEPTH = 100  # levels of nesting: 400 beyond
MODEL_NAME_CHARS = 256
API_KEY_BYTES = 512
MESSAGES = 10_000  # messages or items in one call
TOOLS = 512  # tools offered in one call
TOOL_SCHEMA_BYTES = 256 * 1024  # JSON Schema of one tool
LOGIT_BIASES = 4_096  # tokens in one logit_bias
TOP_LOGPROBS = 20  # likeliest tokens shown beside the chosen one
CHOICES = 16  # answers to one prompt (`n`)
GRAMMAR_BYTES = 256 * 1024  # a schema, a pattern or a grammar
GRAMMAR_CHOICES = 256  # alternatives of a `choice`
STOP_STRINGS_USED = 4  # the first four count, as at the OpenAI API
STOP_STRINGS = 64  # more than this many is a 400
EMBED_TEXTS = 2_048  # in one embeddings request, as at the OpenAI API: 400 beyond
EMBED_TEXTS_ASKED = 16  # of them in one message to the worker: others wait for no more than that
TEMPLATE_ARGS_BYTES = 4 * 1024  # chat_template_kwargs as JSON

# Forms (multipart bodies of audio and image calls).
FORM_PARTS = 1_024
FORM_PART_HEAD_BYTES = 8 * 1024  # of one part's headers

# Quoting and listing in errors of ours.
QUOTED_ERROR_CHARS = 240  # of a backend's own words
KNOWN_NAMES_LISTED = 20  # model names offered in a 404

# Relay.
RELAY_BUFFER_BYTES = 256 * 1024  # may wait between the upstream socket and the client's
SSE_RECORD_BYTES = 16 * 1024 * 1024  # one server-sent event in the tap; beyond it the tap is off
USAGE_FRAME_BYTES = 16 * 1024  # of an event that may be taken out of a stream; they have 1 KiB
COUNTED_TEXT_BYTES = 1024 * 1024  # of one prompt and answer, held until a tokenizer has counted it
COUNTS_RUNNING = 2  # answers that tokenizers are asked about at one time,
COUNTS_WAITING = 100  # and waiting for that; more are estimated
ANSWER_TAP_BYTES = 64 * 1024 * 1024  # a whole (not streamed) answer in the tap

# The link between gateway and worker.
LINK_MESSAGE_BYTES = 64 * 1024 * 1024  # one message; a Submit carries a whole conversation
LINK_BEAT_S = 1.0  # both sides beat this often
LINK_LEASE_S = 5.0  # silence after which the other side is gone
LINK_CREDIT_TOKENS = 256  # window of a plain run, renewed at half
LINK_RING_RECORDS = 65_536  # numbered records a worker keeps unacknowledged, per run
LINK_RING_BYTES = 8 * 1024 * 1024
LINK_SERIES = 2_048  # lines of /metrics that one Beat may fill; a worker has about 300
LINK_LABELS = 8  # of one sample in it
LINK_LABEL_CHARS = 256  # of a label's name or value, and of a metric's name
LINK_DONE_KEPT_S = 60.0  # how long an unacknowledged Done outlives its owner

# The worker.
PREPARING = 16  # requests rendered and encoded ahead of the queue
TEMPLATE_BYTES = 256 * 1024  # a chat template
TEMPLATE_OUTPUT_BYTES = 8 * 1024 * 1024  # what it may render
TEMPLATE_LOOP_STEPS = 100_000  # iterations of all its loops together
GGUF_TENSORS = 65_536  # in one file
SAFETENSORS_HEADER_BYTES = 100 * 1024 * 1024
