"""Conversions between OpenAI Responses and Chat Completions: requests, results and streams.

Everything here is a pure function of JSON objects: no I/O, no clock but for `created_at`, no client library.
"""

from rollmill.openai.chunks import chat_chunks, chunks_from_events
from rollmill.openai.events import response_events
from rollmill.openai.items import function_call, normalize_input, text_message
from rollmill.openai.live import events_from_chat_chunks
from rollmill.openai.requests import chat_request_to_responses, responses_request_to_chat
from rollmill.openai.results import chat_completion_to_response, new_response, response_to_chat_completion

__all__ = [
    "chat_chunks",
    "chat_completion_to_response",
    "chat_request_to_responses",
    "chunks_from_events",
    "events_from_chat_chunks",
    "function_call",
    "new_response",
    "normalize_input",
    "response_events",
    "response_to_chat_completion",
    "responses_request_to_chat",
    "text_message",
]
