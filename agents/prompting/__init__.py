"""Agents that prompt a chat model: plain, ReAct, Reflexion, tools, and the standard prompts."""
