"""server/protocol"""
