"""Chat templates in the manner of the families that we know, as short as they can be.

Written for tests: each puts around messages, tools, calls and outputs what models of its family
were trained with.
"""

from typing import Final

HERMES: Final = r"""
{%- if tools -%}
<|im_start|>system
{% if messages[0].role == 'system' %}{{ messages[0].content }}

{% endif %}You may call these functions, each call between <tool_call></tool_call>:
{%- for tool in tools %}

{{ tool | tojson }}
{%- endfor %}<|im_end|>
{% elif messages[0].role == 'system' -%}
<|im_start|>system
{{ messages[0].content }}<|im_end|>
{% endif -%}
{%- for message in messages -%}
{%- if message.role == 'tool' -%}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' -%}<|im_start|>user
{% else %}{{ '\n' }}{% endif -%}
<tool_response>
{{ message.content }}
</tool_response>
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' -%}<|im_end|>
{% endif -%}
{%- elif message.tool_calls -%}
<|im_start|>assistant
{% for call in message.tool_calls -%}
{%- if not loop.first %}{{ '\n' }}{% endif -%}
<tool_call>
{"name": {{ call.function.name | tojson }}, "arguments": {{ call.function.arguments }}}
</tool_call>
{%- endfor %}<|im_end|>
{% elif message.role != 'system' or not loop.first -%}
<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
<|im_start|>assistant
{% endif -%}
"""

THINKS: Final = HERMES.replace(
    "<|im_start|>assistant\n{% endif -%}", "<|im_start|>assistant\n<think>\n{% endif -%}"
)
"""The same for a model that always thinks first."""

LLAMA3: Final = """
{{- bos_token }}
{%- if tools_in_user_message is not defined %}{% set tools_in_user_message = true %}{% endif %}
{%- if tools or messages[0].role == 'system' -%}
<|start_header_id|>system<|end_header_id|>

{% if tools and not tools_in_user_message %}Answer calls as {"name": , "parameters": }.
{% for tool in tools %}{{ tool | tojson(indent=4) }}
{% endfor %}{% endif %}
{%- if messages[0].role == 'system' %}{{ messages[0].content }}{% endif %}<|eot_id|>
{%- endif -%}
{%- for message in messages -%}
{%- if message.tool_calls -%}
{%- if message.tool_calls | length != 1 %}{{ raise_exception('one call at a time') }}{% endif -%}
{%- set call = message.tool_calls[0].function -%}
<|start_header_id|>assistant<|end_header_id|>

{"name": "{{ call.name }}", "parameters": {{ call.arguments | tojson }}}<|eot_id|>
{%- elif message.role == 'tool' -%}
<|start_header_id|>ipython<|end_header_id|>

{{ message.content }}<|eot_id|>
{%- elif message.role != 'system' or not loop.first -%}
<|start_header_id|>{{ message.role }}<|end_header_id|>

{{ message.content | trim }}<|eot_id|>
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
<|start_header_id|>assistant<|end_header_id|>

{% endif -%}
"""

MISTRAL: Final = """
{{- bos_token }}
{%- set system = messages[0].content if messages[0].role == 'system' else '' %}
{%- set chat = messages[1:] if system else messages %}
{%- set turn = namespace(user=true) %}
{%- for message in chat -%}
{%- if message.role == 'user' or (message.role == 'assistant' and not message.tool_calls) -%}
{%- if (message.role == 'user') != turn.user %}{{ raise_exception('take turns') }}{% endif -%}
{%- set turn.user = not turn.user -%}
{%- endif -%}
{%- if message.role == 'user' -%}
{%- if loop.last and tools -%}[AVAILABLE_TOOLS]{{ tools | tojson }}[/AVAILABLE_TOOLS]{%- endif -%}
[INST]{% if loop.last and system %}{{ system }}

{% endif %}{{ message.content }}[/INST]
{%- elif message.tool_calls -%}
[TOOL_CALLS][
{%- for call in message.tool_calls -%}
{%- if not loop.first %}, {% endif -%}
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
{%- endfor -%}
]</s>
{%- elif message.role == 'tool' -%}
[TOOL_RESULTS]{"content": {{ message.content | tojson }}}[/TOOL_RESULTS]
{%- else -%}
{{ message.content }}</s>
{%- endif -%}
{%- endfor -%}
"""

MISTRAL_ARGS: Final = (
    MISTRAL[: MISTRAL.index("[TOOL_CALLS]")]
    + """
{%- for call in message.tool_calls -%}
[TOOL_CALLS]{{ call.function.name }}[ARGS]{{ call.function.arguments | tojson }}
{%- endfor -%}
</s>
{%- elif message.role == 'tool' -%}
[TOOL_RESULTS]{{ message.content }}[/TOOL_RESULTS]
{%- else -%}
{{ message.content }}</s>
{%- endif -%}
{%- endfor -%}
"""
)

HARMONY: Final = """
{{- '<|start|>system<|message|>You are a model. Channels: analysis, commentary, final.<|end|>' }}
{%- if tools or messages[0].role == 'system' -%}
<|start|>developer<|message|>{% if messages[0].role == 'system' %}{{ messages[0].content }}
{%- endif %}{% if tools %}

# Tools
{% for tool in tools %}// {{ tool.function.description }}
type {{ tool.function.name }} = (_: any) => any;
{% endfor %}{% endif %}<|end|>
{%- endif -%}
{%- for message in messages -%}
{%- if message.tool_calls -%}
{%- set call = message.tool_calls[0].function -%}
<|start|>assistant to=functions.{{ call.name }}<|channel|>commentary json<|message|>
{{- call.arguments | tojson }}<|call|>
{%- elif message.role == 'tool' -%}
<|start|>functions.{{ message.name }} to=assistant<|channel|>commentary<|message|>
{{- message.content | tojson }}<|end|>
{%- elif message.role == 'assistant' -%}
<|start|>assistant<|channel|>final<|message|>{{ message.content }}
{%- if loop.last and not add_generation_prompt %}<|return|>{% else %}<|end|>{% endif -%}
{%- elif message.role != 'system' -%}
<|start|>{{ message.role }}<|message|>{{ message.content }}<|end|>
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}<|start|>assistant{%- endif -%}
"""

_TAGGED: Final = r"""
{%- for message in messages -%}
{%- if message.role == 'tool' -%}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' -%}<|im_start|>user{% endif %}

<tool_response>
{{ message.content }}
</tool_response>
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' -%}<|im_end|>
{% endif -%}
{%- elif message.tool_calls -%}
<|im_start|>assistant
{{ write(message.tool_calls) }}<|im_end|>
{% else -%}
<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endif -%}
{%- if loop.last and add_generation_prompt -%}
<|im_start|>assistant
{% endif -%}
{%- endfor -%}
"""

_SHOWS: Final = r"""
{%- if tools -%}
<|im_start|>system
{% if messages[0].role == 'system' %}{{ messages[0].content }}

{% endif %}You may write <tool_call> with one of these:
{%- for tool in tools %}

{{ tool | tojson }}
{%- endfor %}<|im_end|>
{% set messages = messages[1:] if messages[0].role == 'system' else messages %}
{%- endif -%}
"""


def tagged(calls: str) -> str:
    """A template in ChatML that shows tools, and writes ``calls`` by this macro's body."""
    return (
        f"{{%- macro write(calls) -%}}{calls}{{%- endmacro -%}}"
        + _SHOWS.replace("{% set messages", "{%- set messages")
        + _TAGGED
    )


PARAMETERS: Final = tagged(r"""
{%- for call in calls -%}
{%- if not loop.first %}{{ '\n' }}{% endif -%}
<tool_call>
<function={{ call.function.name }}>
{% for key, value in call.function.arguments.items() -%}
<parameter={{ key }}>
{{ value | tojson if value is mapping or value is iterable and value is not string else value }}
</parameter>
{% endfor -%}
</function>
</tool_call>
{%- endfor -%}
""")
"""Qwen3-Coder and its like: parameters one by one; what is true is ``True``."""

ARGUMENT_KEYS: Final = tagged(r"""
{%- for call in calls %}

<tool_call>{{ call.function.name }}
{%- for key, value in call.function.arguments.items() %}

<arg_key>{{ key }}</arg_key>
<arg_value>{{ value if value is string else value | tojson }}</arg_value>
{%- endfor %}

</tool_call>
{%- endfor -%}
""")
"""GLM and its like."""

INVOKE: Final = tagged(r"""
{{- '\n' }}<minimax:tool_call>
{% for call in calls -%}
<invoke name="{{ call.function.name }}">
{% for key, value in call.function.arguments.items() -%}
<parameter name="{{ key }}">{{ value if value is string else value | tojson }}</parameter>
{% endfor -%}
</invoke>
{% endfor -%}
</minimax:tool_call>
""")
"""MiniMax and its like."""

LIST: Final = tagged(r"""
{{- '<tool_calls>[' }}
{%- for call in calls -%}
{%- if not loop.first %}, {% endif -%}
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }},
{{- ' "id": "' ~ call.id ~ '"}' }}
{%- endfor -%}
]</tool_calls>
""")
"""Apriel and its like: a list, each call with an id."""

FUNCTIONARY: Final = tagged(r"""
{%- for call in calls -%}
<function={{ call.function.name }}>{{ call.function.arguments | tojson }}</function>
{%- endfor -%}
""")

NUMBERED: Final = tagged(r"""
{{- '<|calls|>' }}
{%- for call in calls -%}
functions.{{ call.function.name }}:{{ loop.index0 }}<|args|>{{ call.function.arguments | tojson }}
{%- endfor -%}
<|over|>
""")
"""Kimi and its like: a call has its number."""

TYPED: Final = tagged(r"""
{{- '<calls>\n' }}
{%- for call in calls -%}
<invoke name="{{ call.function.name }}">
{% for key, value in call.function.arguments.items() -%}
<parameter name="{{ key }}" string="{{ 'true' if value is string else 'false' }}">
{{- value if value is string else value | tojson }}</parameter>
{% endfor -%}
</invoke>
{% endfor -%}
</calls>
""")
"""DeepSeek V3.2 and its like: a parameter says whether it is a string."""

UNKNOWN: Final = tagged(r"""
{%- for call in calls -%}
<tool_call>call:{{ call.function.name }}{
{%- for key, value in call.function.arguments.items() -%}
{%- if not loop.first %},{% endif %}{{ key }}:<|"|>{{ value }}<|"|>
{%- endfor -%}
}</tool_call>
{%- endfor -%}
""")
"""A form of its own, in which nothing that we know can be seen."""

SILENT: Final = tagged("") + "{#- Calls are not shown, though <tool_call> is named. -#}"

GENERATION: Final = """
{%- for message in messages -%}
<|im_start|>{{ message.role }}
{% if message.role == 'assistant' -%}
{%- generation -%}{{ message.content }}{%- endgeneration -%}
{%- else -%}{{ message.content }}{%- endif -%}
<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}
<|im_start|>assistant
{% endif -%}
"""
"""What a trainer is told of is between tags that change nothing."""

ENDS: Final = """
{%- for message in messages -%}
<|im_start|>{{ message.role }}
{{ message.content | trim }}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}
<|im_start|>assistant
{% else -%}
{{ eos_token }}
{%- endif -%}
"""
"""Phi and its like: a chat that is not to be answered has an end."""

BY_PLACE: Final = HERMES.replace(
    "{{ message.content }}<|im_end|>\n{% endif -%}\n{%- endfor -%}",
    "{{ message.content | trim }}{% if not loop.last %} ({{ loop.index }}){% endif %}<|im_end|>\n"
    "{% endif -%}\n{%- endfor -%}",
)
"""A message looks different by its place: such a chat is rendered whole."""

TURNS: Final = """
{%- for message in messages -%}
{%- if (message.role == 'user') != (loop.index0 % 2 == 0) -%}
{{ raise_exception('users and assistants take turns') }}
{%- endif -%}
<|im_start|>{{ message.role }}
{{ message.content }}{% if not loop.last %} ({{ loop.index }}){% endif %}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}
<|im_start|>assistant
{% endif -%}
"""
"""The same, with a strict order of roles."""

SWITCH: Final = HERMES.replace(
    "<|im_start|>assistant\n{% endif -%}",
    "<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif -%}\n"
    "{% endif -%}",
)
"""A model whose template has a switch for thoughts."""

EFFORT: Final = HARMONY.replace(
    "You are a model.", "Reasoning: ' ~ (reasoning_effort or 'medium') ~ '."
)
"""A model that is told its effort in words."""
