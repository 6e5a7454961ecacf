"""The chat template of the bundled pair, written for Jinja as transformers runs it.

Gemma 4's turn syntax in own words: system, user and model turns, the thinking switch, tool declarations, tool calls and
their responses. Past thoughts are dropped, except in the tool-call turn that is still open. Knows nothing of token ids.
"""

from __future__ import annotations

CHAT_TEMPLATE = r"""
{#- One value in the tool syntax: strings between <|"|> marks, mappings as {k:v}, the rest as in JSON. -#}
{%- macro value(item) -%}
    {%- if item is string -%}<|"|>{{ item }}<|"|>
    {%- elif item is boolean -%}{{ 'true' if item else 'false' }}
    {%- elif item is none -%}null
    {%- elif item is mapping -%}{{ fields(item) }}
    {%- elif item is sequence -%}[{% for part in item %}{{ value(part) }}{{ ',' if not loop.last }}{% endfor %}]
    {%- else -%}{{ item }}
    {%- endif -%}
{%- endmacro -%}
{%- macro fields(mapping) -%}
    { {%- for key, item in mapping.items() %}{{ key }}:{{ value(item) }}{{ ',' if not loop.last }}{% endfor -%} }
{%- endmacro -%}
{%- macro plain(content) -%}
    {%- if content is string -%}{{ content }}
    {%- elif content -%}{% for part in content if part.type == 'text' %}{{ part.text }}{% endfor %}
    {%- endif -%}
{%- endmacro -%}
{#- A model turn's text without its thought channels. -#}
{%- macro spoken(text) -%}
    {%- for piece in text.split('<channel|>') -%}{{ piece.split('<|channel>')[0] }}{%- endfor -%}
{%- endmacro -%}
{{- '<bos>' -}}
{%- set system = namespace(text='', rest=messages) -%}
{%- if messages and messages[0].role in ('system', 'developer') -%}
    {%- set system.text = plain(messages[0].content) | trim -%}
    {%- set system.rest = messages[1:] -%}
{%- endif -%}
{%- if system.text or tools or enable_thinking -%}
    {{- '<|turn>system\n' -}}
    {{- '<|think|>' if enable_thinking -}}
    {{- system.text -}}
    {%- for tool in tools or [] -%}
        {%- set called = tool.function if tool.function is defined else tool -%}
        {{- '<|tool>declaration:' ~ called.name ~ fields({
            'description': called.description or '', 'parameters': called.parameters or {}}) ~ '<tool|>' -}}
    {%- endfor -%}
    {{- '<turn|>\n' -}}
{%- endif -%}
{%- set state = namespace(open=false, asked=-1) -%}
{%- for message in system.rest -%}
    {%- if message.role == 'user' -%}{%- set state.asked = loop.index0 -%}{%- endif -%}
{%- endfor -%}
{%- for message in system.rest -%}
    {%- if message.role == 'tool' -%}
        {{- '<|tool_response>response:' ~ (message.name or message.tool_call_id or 'tool') -}}
        {{- (fields(message.content) if message.content is mapping else fields({'value': plain(message.content)})) -}}
        {{- '<tool_response|>' -}}
    {%- elif message.role in ('assistant', 'model') -%}
        {{- '<|turn>model\n' if not state.open -}}
        {%- set thought = message.reasoning_content or message.reasoning or '' -%}
        {%- set calling = message.tool_calls and loop.index0 > state.asked -%}
        {{- '<|channel>thought\n' ~ thought ~ '<channel|>' if thought and calling -}}
        {{- spoken(plain(message.content)) | trim -}}
        {%- for call in message.tool_calls or [] -%}
            {%- set made = call.function if call.function is defined else call -%}
            {{- '<|tool_call>call:' ~ made.name -}}
            {{- fields(made.arguments) if made.arguments is mapping else made.arguments -}}
            {{- '<tool_call|>' -}}
        {%- endfor -%}
        {%- set state.open = true if message.tool_calls else false -%}
        {{- '<turn|>\n' if not state.open -}}
    {%- else -%}
        {{- '<turn|>\n' if state.open -}}
        {%- set state.open = false -%}
        {{- '<|turn>' ~ message.role ~ '\n' ~ (plain(message.content) | trim) ~ '<turn|>\n' -}}
    {%- endif -%}
{%- endfor -%}
{{- '<|turn>model\n' if add_generation_prompt and not state.open -}}
""".strip()
