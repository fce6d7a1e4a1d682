"""server/front"""
