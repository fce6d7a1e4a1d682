"""server/engine"""
