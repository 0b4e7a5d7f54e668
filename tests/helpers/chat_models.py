"""Chat templates with the features of popular ones, and small models that contain one of these templates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from helpers.gguf_files import LLAMA, llama, tokenizer

Messages = list[dict[str, Any]]

# Whitespace control and a default system prompt.
CHATML = """{% for m in messages %}{% if loop.first and m['role'] != 'system' %}
{{ '<|start|>system\\nYou help.<|end|>\\n' }}{% endif %}
{{- '<|start|>' + m['role'] + '\\n' + m['content'] + '<|end|>\\n' }}{% endfor %}
{% if add_generation_prompt %}{{ '<|start|>assistant\\n' }}{% endif %}"""

TEMPLATES = {
    "chatml": CHATML,
    # The system prompt joins the first message of the user; roles must alternate.
    "alternating": """{{ bos_token }}{% if messages[0]['role'] == 'system' %}{% set rest = messages[1:] %}
{% set first = '<<' + messages[0]['content'] + '>>\\n' %}{% else %}
{% set rest = messages %}{% set first = '' %}{% endif %}
{% for m in rest %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{ raise_exception('roles must alternate user/assistant/user/assistant') }}{% endif %}
{% if m['role'] == 'user' %}{{ '[Q] ' + (first if loop.index0 == 0 else '') + m['content'] | trim + ' [A]' }}
{% else %}{{ ' ' + m['content'] | trim + eos_token }}{% endif %}{% endfor %}""",
    # Headers, trimmed contents, and a date.
    "headers": """{{- bos_token }}
{%- if not date_string is defined %}{%- set date_string = strftime_now('%d %b %Y') %}{%- endif %}
{%- for m in messages %}
    {{- '<|start|>' + m.role + '<|end|>\\n\\n' }}
    {%- if loop.first and m.role == 'system' %}{{- 'Today is ' + date_string + '\\n' }}{%- endif %}
    {{- m.content | trim }}
    {{- '<|end|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start|>assistant<|end|>\\n\\n' }}{%- endif %}""",
    # Tools as JSON, calls of tools and their results.
    "tools": """{%- if tools %}{{- '<|start|>system\\nTools:\\n' }}{%- for tool in tools %}{{- tool | tojson }}
{{- '\\n' }}{%- endfor %}{{- '<|end|>\\n' }}{%- endif %}
{%- for m in messages %}
{%- if m.role == 'tool' %}{{- '<|start|>user\\n<tool>' ~ m.content ~ '<|end|>\\n' }}
{%- elif m.tool_calls is defined and m.tool_calls %}{{- '<|start|>assistant\\n' }}
{%- for call in m.tool_calls %}{%- set f = call.function %}
{{- f.name ~ '(' ~ (f.arguments | tojson(indent=2) if f.arguments is mapping else f.arguments) ~ ')' }}{%- endfor %}
{{- '<|end|>\\n' }}
{%- else %}{{- '<|start|>' ~ m.role ~ '\\n' ~ m.content ~ '<|end|>\\n' }}{%- endif %}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start|>assistant\\n' }}{%- endif %}""",
    # A namespace that is changed in loops; `break` and `continue`; a loop over the messages in reverse order.
    "loops": """{%- set ns = namespace(last=-1, count=0) %}
{%- for m in messages[::-1] %}{%- if m.role == 'user' %}{%- set ns.last = messages | length - 1 - loop.index0 %}
{%- break %}{%- endif %}{%- endfor %}
{%- for m in messages %}{%- if m.role == 'system' %}{%- continue %}{%- endif %}{%- set ns.count = ns.count + 1 %}
{{- ns.count ~ ('*' if loop.index0 == ns.last else '') ~ (': ' if not loop.last else ':: ') ~ m.content ~ eos_token }}
{%- endfor %}{%- if add_generation_prompt %}{{- '?' }}{%- endif %}""",
    # Contents that consist of parts; macros; filters.
    "parts": """{%- macro shown(content) -%}{%- if content is string %}{{- content }}{%- else %}
{%- for part in content %}{%- if part.type == 'text' %}{{- part.text }}{%- else %}{{- '[' ~ part.type | upper ~ ']' }}
{%- endif %}{%- endfor %}{%- endif %}{%- endmacro -%}
{%- for m in messages %}<|start|>{{ m.role | capitalize }}: {{ shown(m.content) }}<|end|>
{% endfor %}{% if add_generation_prompt %}<|start|>Assistant:{% endif %}""",
    # Answers marked for training; thoughts before </think> are removed from earlier answers.
    "thoughts": """{% for m in messages %}{% if m.role == 'assistant' %}
{{- '<|start|>assistant\\n' }}{% generation %}
{{ m.content.split('</think>')[-1].lstrip('\\n') ~ '<|end|>' }}{% endgeneration %}
{% else %}{{- '<|start|>' ~ m.role ~ '\\n' ~ m.content ~ '<|end|>' }}{% endif %}
{% endfor %}
{% if add_generation_prompt %}{{ '<|start|>assistant\\n' }}
{% if thinking is defined and thinking %}{{ '<think>\\n' }}{% endif %}{% endif %}""",
    # Plain words instead of special tokens; documents.
    "words": """{% if documents %}{% for d in documents %}Document {{ loop.index }}: {{ d['title'] }}
{{ d['text'] }}
{% endfor %}{% endif %}
{% for m in messages %}
{% if m['role'] == 'user' %}
### Question:
{{ m['content'] }}

{% elif m['role'] == 'assistant' %}
### Answer:
{{ m['content'] }}{{ eos_token }}

{% else %}
{{ m['content'].strip() }}

{% endif %}
{% endfor %}
{% if add_generation_prompt %}
### Answer:
{% endif %}""",
}

# A schema that llguidance would compile for hours: a string that matches all of these expressions.
ENDLESS = {"allOf": [{"type": "string", "pattern": f"^.*[a-z{i % 10}].{{{i}}}$"} for i in range(30)]}


def chat_llama(
    path: Path, template: str | None = CHATML, context: int = 512, extra: dict[str, Any] | None = None
) -> Path:
    """Writes a llama of random weights with a chat template and `extra` metadata, and returns the path."""
    metadata = LLAMA | tokenizer() | {"llama.context_length": context} | (extra or {})
    return llama(path, metadata=metadata | ({"tokenizer.chat_template": template} if template else {}))


def turns(count: int, system: str = "") -> Messages:
    """Returns a conversation that ends with the user's message number `count`."""
    found: Messages = [{"role": "system", "content": system}] if system else []
    for i in range(1, count + 1):
        found.append({"role": "user", "content": f"  hello {i}, are you there?\n"})
        found.append({"role": "assistant", "content": f"Yes {i}: well\n\nhello.  "})
    return found[:-1]
