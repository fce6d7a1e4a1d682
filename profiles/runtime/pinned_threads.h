/* What a block of layers asks of the threads that run its kernels. */
#pragma once

/* The threads of the present core set stay awake from here on: between two layers nobody is woken. */
void pool_awake(void);
/* They sleep at once. */
void pool_asleep(void);
