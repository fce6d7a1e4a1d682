// The page of help has a theme, too.

import { byId } from "/admin/text.js";
import { toggle } from "/admin/theme.js";

byId("theme").addEventListener("click", toggle);
