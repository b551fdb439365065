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
{%- if message.role != 'system' or not loop.first -%}
<|start_header_id|>{{ message.role }}<|end_header_id|>

{{ message.content | trim }}<|eot_id|>
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
<|start_header_id|>assistant<|end_header_id|>

{% endif -%}
{#- Tools' outputs come as ipython. -#}
"""

MISTRAL: Final = """
{{- bos_token }}
{%- set system = messages[0].content if messages[0].role == 'system' else '' %}
{%- set chat = messages[1:] if system else messages %}
{%- for message in chat -%}
{%- if (message.role == 'user') != (loop.index0 % 2 == 0) -%}
{{ raise_exception('roles must alternate') }}
{%- elif message.role == 'user' -%}
{%- if loop.last and tools -%}[AVAILABLE_TOOLS]{{ tools | tojson }}[/AVAILABLE_TOOLS]{%- endif -%}
[INST]{% if loop.last and system %}{{ system }}

{% endif %}{{ message.content }}[/INST]
{%- else -%}
{{ message.content }}</s>
{%- endif -%}
{%- endfor -%}
{#- [TOOL_CALLS] [TOOL_RESULTS] -#}
"""

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
{%- if message.role == 'assistant' -%}
<|start|>assistant<|channel|>final<|message|>{{ message.content }}
{%- if loop.last and not add_generation_prompt %}<|return|>{% else %}<|end|>{% endif -%}
{%- elif message.role != 'system' -%}
<|start|>{{ message.role }}<|message|>{{ message.content }}<|end|>
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}<|start|>assistant{%- endif -%}
"""
