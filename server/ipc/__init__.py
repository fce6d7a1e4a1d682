"""server/ipc"""
