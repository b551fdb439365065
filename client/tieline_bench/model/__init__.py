"""A model that answers at once: what stands behind the service while a benchmark measures it.

It speaks both of OpenAI's interfaces, chat completions and responses, from bytes that were made
beforehand, in a process of its own.
"""
