"""`/v1/responses`: OpenAI's Responses API, on top of chats. It keeps no state."""
