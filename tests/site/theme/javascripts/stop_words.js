// Precedes the search worker of the theme, whose index has no stop words, but which looks for words that begin with them.
// `tests/site/_hooks.py` writes both into one file.
addEventListener("message", ({ data: message }) => {
  const words = "a an and are at be by can do each every for from how i if in is it my of on or the to use what when where why with without"
  const stopWords = new Set(words.split(" "))
  if (message?.type === 2 && typeof message.data === "string") {
    const query = message.data.split(/\s+/).filter(word => !stopWords.has(word.toLowerCase())).join(" ")
    message.data = query || message.data
  }
})
