"""From a Submit to a run that can be queued: rendered, encoded, checked. Knows no queue.

A thread of its own, so that a long conversation never holds up the loop or the link.
"""

import threading

import structlog

from proto.chat import Call
from proto.faults import Refusal
from proto.limits import STOP_STRINGS, STOP_STRINGS_USED
from proto.messages import Counted, Refused, Submit
from worker.embedding.texts import encode_texts
from worker.grammar.compiler import GrammarCompiler
from worker.grammar.forms import form_of
from worker.limits import MOST_TOKEN_NUMBER
from worker.mailbox import Inbox, Outbox
from worker.models.config import SamplingDefaults
from worker.sampling.chooser import ChoiceTexts
from worker.sampling.params import resolve
from worker.text.answer import AnswerSyntax
from worker.text.call_syntax import CallForm
from worker.text.prompt import Prompt, PromptWriter, prompt_hash
from worker.text.reasoning import ReasoningForm
from worker.text.sent_back import SentBack
from worker.types import (
    Arrival,
    Broken,
    Closing,
    EmbedQuestion,
    Forget,
    Outgoing,
    Prepared,
    Question,
    Rejected,
    Replied,
    Texts,
    ToLoop,
    ToPreparer,
    Warmable,
)
from worker.warm import session_key

log = structlog.get_logger()

WARM_NOT_RENDERED = "warm.not_rendered"
SEGMENT_LOST = "segment.lost"

WAIT_S = 1.0
BLANK = "\n\n"  # what templates put between the reasoning and the answer
NO_REASONING = ReasoningForm("none")


class Preparer:
    """Turns arrivals into prepared runs and replies into what can be read ahead of the next one,
    encodes texts to embed, and counts tokens."""

    def __init__(
        self,
        writer: PromptWriter,
        defaults: SamplingDefaults,
        compiler: GrammarCompiler,
        sent_back: SentBack,
        *,
        max_len: int,
        vocab_size: int,
        inbox: Inbox[ToPreparer],
        loop: Inbox[ToLoop],
        outbox: Outbox,
    ) -> None:
        self._writer = writer
        self._defaults = defaults
        self._max_len = max_len
        self._vocab_size = vocab_size
        self._compiler = compiler
        self._sent_back = sent_back
        self._token_bytes = writer.token_bytes
        template = writer.template
        self._call_form: CallForm = template.call_form if template else "hermes"
        self._closing = Closing()
        if template is not None and template.reasoning.opens != "none":
            close = template.reasoning.close
            self._closing = Closing(writer.encode(f"\n{close}{BLANK}"), writer.encode(BLANK))
        self._inbox = inbox
        self._loop = loop
        self._outbox = outbox

    def run(self, stop: threading.Event) -> None:
        """Works until told to stop."""
        while not stop.is_set():
            self.work(WAIT_S)

    def work(self, wait_s: float = 0.0) -> None:
        """Works off what has come."""
        items = self._inbox.take_all(wait_s)
        for item in sorted(items, key=lambda item: isinstance(item, Replied)):  # not waited for
            match item:
                case Arrival():
                    self._loop.put(self._prepare(item))
                case Question():
                    self._outbox.put(Outgoing(self._answer(item), item.asker))
                case EmbedQuestion():
                    self._encode(item)
                case Replied():
                    self._loop.put(self._look_ahead(item))
                case Forget():
                    self._loop.put(item)

    def _prepare(self, arrival: Arrival) -> Prepared | Rejected | Broken:
        try:
            return self._prepared(arrival)
        except Refusal as refusal:
            return Rejected(
                arrival,
                refusal.code,
                refusal.detail,
                refusal.param,
                refusal.retry_after_ms,
            )
        except Exception as fault:  # noqa: BLE001 - one request must not end the worker
            return Broken(arrival, type(fault).__name__)

    def _prepared(self, arrival: Arrival) -> Prepared:
        submit = arrival.submit
        _refuse_unsupported(submit)
        call, is_thinking = submit.call, submit.plan.thinking.on
        sampling = resolve(
            submit.params,
            self._defaults,
            seed=submit.seed,
            choice=submit.choice,
            vocab_size=self._vocab_size,
        )
        if (least := self._writer.least_tokens(call)) >= self._max_len:
            raise _too_long(f"at least {least}", self._max_len)
        form = form_of(call, self._call_form)
        matcher = None if form is None else self._compiler.compile(form)
        prompt = self._writer.write(
            call,
            is_thinking=is_thinking,
            is_formed=form is not None,
            segments=submit.plan.segments,
        )
        if prompt.notes.lost:
            log.warning(SEGMENT_LOST, run_id=submit.run_id, count=len(prompt.notes.lost))
        if len(prompt.ids) >= self._max_len:
            raise _too_long(str(len(prompt.ids)), self._max_len)
        if max(prompt.ids) >= self._vocab_size:
            raise Refusal("bad_request", "a token is unknown to the model", param="messages")
        digest = prompt_hash(prompt.ids)
        if submit.prompt_hash not in (None, digest):
            raise Refusal("prompt_mismatch", "the prompt encodes differently here")
        choices = None
        if form is not None and form.choices:
            choices = ChoiceTexts(form.choices, self._token_bytes)
        syntax = self._syntax(submit, is_open=prompt.is_open, is_formed=form is not None)
        return Prepared(
            arrival, prompt.ids, digest, sampling, syntax,
            matcher, choices, self._closing, prompt.cuts, session_key(submit), prompt.notes,
        )  # fmt: skip

    def _syntax(self, submit: Submit, *, is_open: bool, is_formed: bool) -> AnswerSyntax:
        call, template = submit.call, self._writer.template
        is_chat = call.prompt is None and template is not None
        reasoning = template.reasoning if template and is_chat else NO_REASONING
        mode = call.tool_choice.mode
        is_forced = mode in ("required", "named")
        return AnswerSyntax(
            stops=submit.params.stop[:STOP_STRINGS_USED],
            reasoning=reasoning,
            is_open=is_open,
            is_thinking=submit.plan.thinking.on and reasoning.opens != "none",
            is_formed=is_formed,
            tools=() if mode == "none" else call.tools,
            tool_stream=submit.plan.tool_stream,
            most_calls=1 if is_forced and not call.parallel_tool_calls else None,
        )

    def _look_ahead(self, replied: Replied) -> Warmable:
        submit, salt = replied.submit, replied.submit.cache_salt
        call = submit.call
        try:
            reply = self._sent_back.next_form(salt, call.messages, replied.reply)
            self._sent_back.saw_reply(salt, replied.reply)
            is_thinking = submit.plan.thinking.on
            segments = (*submit.plan.segments, *replied.hidden)
            prompt = self._writer.write_next(
                call, reply, is_thinking=is_thinking, segments=segments
            )
        except Exception as fault:  # noqa: BLE001 - nobody asked for it, so it is nobody's error
            log.warning(WARM_NOT_RENDERED, error=type(fault).__name__)
            prompt = None
        if prompt is None or not self._can_read(prompt.ids):
            prompt = Prompt(())
        return Warmable(prompt.ids, prompt.cuts, salt, replied.session, replied.ended_s)

    def _can_read(self, ids: tuple[int, ...]) -> bool:
        return len(ids) < self._max_len and max(ids, default=0) < self._vocab_size

    def _answer(self, question: Question) -> Counted | Refused:
        count = question.count
        try:
            return Counted(count.req_id, _counts(self._writer, count.call, count.texts))
        except Refusal as refusal:
            return Refused(refusal.code, refusal.detail, req_id=count.req_id, param=refusal.param)
        except Exception as fault:  # noqa: BLE001 - one question must not end the worker
            name = type(fault).__name__
            return Refused("bad_request", f"counting failed: {name}", req_id=count.req_id)

    def _encode(self, question: EmbedQuestion) -> None:
        req_id, asker = question.embed.req_id, question.asker
        try:
            ids = encode_texts(
                question.embed.texts,
                self._writer,
                max_len=self._max_len,
                vocab_size=self._vocab_size,
            )
        except Refusal as refusal:
            refused = Refused(refusal.code, refusal.detail, req_id=req_id, param=refusal.param)
        except Exception as fault:  # noqa: BLE001 - one question must not end the worker
            refused = Refused("internal", type(fault).__name__, req_id=req_id)
        else:
            self._loop.put(Texts(req_id, asker, question.arrived_s, ids))
            return
        self._outbox.put(Outgoing(refused, asker))


def _too_long(tokens: str, max_len: int) -> Refusal:
    return Refusal(
        "too_long",
        f"the prompt has {tokens} tokens; with one token of answer this model takes {max_len}",
    )


def _counts(
    writer: PromptWriter, call: Call | None, texts: tuple[str, ...] | None
) -> tuple[int, ...]:
    if call is not None:
        return (len(writer.write(call, is_thinking=False).ids),)
    return tuple(writer.count_text(text) for text in texts or ())


def _refuse_unsupported(submit: Submit) -> None:
    if not 1 <= submit.start_token < MOST_TOKEN_NUMBER:
        raise Refusal("bad_request", "no run can start at this token", param="start_token")
    stops = submit.params.stop
    if len(stops) > STOP_STRINGS or not all(stops):
        sentence = f"stop takes at most {STOP_STRINGS} strings, none of them empty"
        raise Refusal("bad_request", sentence, param="stop")
    if submit.resume is not None:
        raise Refusal("bad_request", "resume is not supported by this engine yet", param="resume")
