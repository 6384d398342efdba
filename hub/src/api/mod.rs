//! JSON over HTTP: the OpenAI-shaped API.
